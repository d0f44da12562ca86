//go:build !linux

package testbed

import (
	"errors"
	"time"
)

// cpu isn't known here.
func cpu(int) (time.Duration, error) { return 0, errors.ErrUnsupported }
