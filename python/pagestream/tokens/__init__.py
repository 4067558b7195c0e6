"""Token files: opening, documents, writing."""
