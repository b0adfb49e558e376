"""What things are: frozen data and pure rules; no input or output, no awaiting."""
