//go:build !unix

package main

// mostFiles returns how many files the process may have open.
func mostFiles() int { return maxFiles }
