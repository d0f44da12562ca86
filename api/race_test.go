//go:build race

package api

func init() { behindPlain = true }
