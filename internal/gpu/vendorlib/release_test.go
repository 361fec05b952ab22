// SPDX-License-Identifier: Apache-2.0

package vendorlib

import (
	"errors"
	"testing"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// A release ends the session, and the next enumeration opens another one.
func TestReaderRelease(t *testing.T) {
	lib := &fakeLib{uuids: []string{"GPU-0"}}
	r := lib.reader()
	var v gpu.Values
	for i := range 3 {
		if list, err := r.Devices(); len(list) != 1 || err != nil || r.Read("GPU-0", gpu.FieldSet{}, &v) != nil {
			t.Fatalf("%d: %v, %v", i, list, err)
		}
		for range 2 { // the second finds nothing to release
			if err := r.Release(); err != nil || lib.shut != i+1 || lib.opened != i+1 {
				t.Errorf("%d: %v, opened %d times, shut %d times", i, err, lib.opened, lib.shut)
			}
		}
		if err := r.Read("GPU-0", gpu.FieldSet{}, &v); !errors.Is(err, gpu.ErrUnknownDevice) {
			t.Errorf("%d: a read gives %v", i, err)
		}
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if _, err := r.Devices(); err == nil {
		t.Error("a closed reader opens the library")
	}
}
