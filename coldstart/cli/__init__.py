"""The command line. ``main.py`` names the commands; each has a module of its own."""
