package limitertest

import (
	"reflect"
	"testing"
)

// Methods runs the exported methods of suite, each of which is a test, as subtests.
func Methods(t *testing.T, suite any) {
	for method, test := range reflect.ValueOf(suite).Methods() {
		t.Run(method.Name, test.Interface().(func(*testing.T)))
	}
}
