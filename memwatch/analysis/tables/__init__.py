"""The derived tables of the schema as DataFrames, one function each."""
