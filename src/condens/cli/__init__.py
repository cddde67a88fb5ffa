"""The command line: `condens`, or `python -m condens`."""
