// SPDX-License-Identifier: Apache-2.0

package auto

import (
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// settleAfter is how long the first reader must have lacked a field before the
// second reads it: a rate needs two readings that are 100 ms apart.
const settleAfter = 300 * time.Millisecond

// need is the fields that one device lacks.
type need struct {
	want        gpu.FieldSet // of the last read
	asked       gpu.FieldSet // the fields that the second reader reads
	unsupported gpu.FieldSet // the fields that do not open it

	lacked gpu.FieldSet // in every read of the first since then
	since  time.Time

	logged  map[string]string // the last log line, by subject
	reasons gpu.Reasons       // cached
	inputs  [3]string         // the texts from which reasons was built
}

// update records the wanted fields that a read of the first reader lacked. The
// certain ones are read from the second from now on, the others after
// settleAfter. It reports whether the set has grown.
func (n *need) update(want, lacking, certain gpu.FieldSet, now time.Time) (grown bool) {
	before := n.asked
	if want != n.want {
		*n = need{want: want, asked: n.asked.Intersect(want), unsupported: n.unsupported, logged: n.logged}
	}
	n.asked = n.asked.Union(certain)
	switch {
	case n.since.IsZero():
		n.lacked, n.since = lacking, now
	case now.Sub(n.since) >= settleAfter:
		n.asked = n.asked.Union(n.lacked.Intersect(lacking))
		n.lacked, n.since = lacking, now
	default:
		n.lacked = n.lacked.Intersect(lacking)
	}
	more := n.asked.Minus(before)
	return !more.Empty()
}
