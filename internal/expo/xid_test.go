// SPDX-License-Identifier: Apache-2.0

package expo

import "testing"

func TestXIDText(t *testing.T) {
	for i, m := range xidMessages {
		if i > 0 && xidMessages[i-1].code >= m.code {
			t.Errorf("XID %d stands after %d", m.code, xidMessages[i-1].code)
		}
		if xidText(m.code) != m.text {
			t.Errorf("XID %d is %q", m.code, xidText(m.code))
		}
	}
	for code, want := range map[uint64]string{0: "No Error", 79: "GPU has fallen off the bus", 1: "Unknown Error", 1 << 60: "Unknown Error"} {
		if got := xidText(code); got != want {
			t.Errorf("XID %d is %q, want %q", code, got, want)
		}
	}
}
