//go:build !linux

package main

import "time"

func hurry() {}

func pause(d time.Duration) { time.Sleep(d) }
