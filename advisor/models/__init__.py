"""What a model is: references, GGUF headers, Hub configs, the catalogue, tokenizer identity."""
