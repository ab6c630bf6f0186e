// Command hostlock takes, holds and explains the benchmark lock of a host that
// several CI runners share.
package main

func main() {}
