"""Files of the parent: temporary folders, output files, uploads."""
