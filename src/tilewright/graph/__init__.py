"""The model as a graph of operators; graph passes; lowering to tensor expressions; partition; memory planning."""
