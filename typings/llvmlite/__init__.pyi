# Minimal stubs of llvmlite 0.50 for what this project uses; extend them as the use grows.
__version__: str
