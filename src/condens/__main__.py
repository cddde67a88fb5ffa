"""`python -m condens` is `condens`."""

from condens.cli import main

if __name__ == "__main__":
    main()
