"""From Transformers and torch to one `Problem`, and back."""
