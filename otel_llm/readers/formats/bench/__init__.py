"""Result files of benchmark tools."""
