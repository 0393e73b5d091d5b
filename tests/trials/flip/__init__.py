"""Trial `flip`: damage to one file at a time, of every kind that the product writes."""
