"""As much of vLLM as this plugin uses, so that types are checked where vLLM is not installed."""

__version__: str
