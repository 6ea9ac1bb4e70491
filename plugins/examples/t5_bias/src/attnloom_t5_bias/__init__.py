"""T5's bucketed relative position bias, for attnloom."""
