"""The folder that is put on the path of the programs that the doctor starts; holds `sitecustomize` and nothing else."""
