"""The folder on the path of programs that the doctor starts; it holds `sitecustomize` and nothing else."""
