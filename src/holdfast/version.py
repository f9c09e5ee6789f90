"""The version of Holdfast. Every other module can import it."""

__version__ = "0.1.0rc2.dev0"
