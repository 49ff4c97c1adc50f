"""One row for each kind of reference, holder, finding and leak, with everything that depends on the kind."""
