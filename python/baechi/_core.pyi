"""The C++ core of baechi. Import the package `baechi`, not this module."""



def version() -> str:
    """The version of the C++ core, 'major.minor.patch'."""
