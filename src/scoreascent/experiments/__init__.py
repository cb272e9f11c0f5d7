"""The paper's figures and tables. They use the library's public names only."""
