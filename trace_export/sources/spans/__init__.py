"""Tables of spans that other tools wrote: what they mean, column by column."""
