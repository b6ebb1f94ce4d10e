"""Bundle to text: `spec-edge` and the embedding API."""
