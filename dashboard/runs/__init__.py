"""The runs of a folder: read, analysed, kept on disk and in memory."""
