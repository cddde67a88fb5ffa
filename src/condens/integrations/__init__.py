"""Other libraries: one file for each, which imports that library when it is imported itself."""
