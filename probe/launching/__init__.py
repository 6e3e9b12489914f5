"""What `meshscope run` does around the command that it starts."""
