"""The one exception that means "the input is wrong", as opposed to "the program is wrong"."""


class InputError(ValueError):
    """A mistake in what the user gave: an argument, a file, a configuration, a checkpoint.

    The message is one clear sentence that names the argument, its value and the remedy. The command line prints it
    alone, without a traceback, and exits with code 2. Broken invariants inside the library stay plain assertions.
    """
