"""What large files and many batches need."""
