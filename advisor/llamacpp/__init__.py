"""Finding, running and measuring llama.cpp."""
