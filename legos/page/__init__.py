"""The local web page, which shows runs from their folders."""
