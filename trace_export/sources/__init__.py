"""Input formats. `formats` lists them, `find` lists what lies in a folder, `choose` takes what the user asked for, and
`read` reads one source into the tables of `model.Profile`."""
