// SPDX-License-Identifier: Apache-2.0

package stamp

import "testing"

func TestPackageVersion(t *testing.T) {
	for version, want := range map[string]string{
		"v0.1.0": "0.1.0", "v0.2.0-rc.1": "0.2.0~rc.1", "v0.1.0-14-gabcdef0": "0.1.0+14.gabcdef0",
		"v0.1.0-14-gabcdef0-dirty": "0.1.0+14.gabcdef0", "e8332e1-dirty": "0.0.0~git.e8332e1.dirty", "unknown": "0.0.0~git.unknown",
	} {
		if got := (Stamp{Version: version}).PackageVersion(); got != want {
			t.Errorf("%s becomes %s, want %s", version, got, want)
		}
	}
}

func TestReadTime(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	var s Stamp
	if err := s.ReadTime(); err != nil || s.Created.Unix() != 1700000000 {
		t.Errorf("%v, %s", err, s.Created)
	}
	t.Setenv("SOURCE_DATE_EPOCH", "yesterday")
	if err := s.ReadTime(); err == nil {
		t.Error("no error")
	}
}
