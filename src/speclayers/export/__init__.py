"""What other software needs to serve a choice of layers or a head: its names, numbers and files."""
