package main

// The usage texts are written by hand, as a person will read them.

const usage = `Usage: hostlock COMMAND [flags]
`

// usages are the texts of the commands.
var usages = map[string]string{}
