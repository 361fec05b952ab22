// SPDX-License-Identifier: Apache-2.0

package auto

import (
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// settleAfter is how long the first reader must have lacked a field before the
// second is asked for it: a rate needs two readings that are 100 ms apart.
const settleAfter = 300 * time.Millisecond

// need is what one device lacks.
type need struct {
	want     gpu.FieldSet // of the last read
	asked    gpu.FieldSet // what the second reader is asked for
	hopeless gpu.FieldSet // what does not open it

	lacked gpu.FieldSet // in every read of the first since then
	since  time.Time

	said    map[string]string // by what: what was logged of it
	reasons gpu.Reasons       // as of whys
	whys    [3]string
}

// update takes in what a read of the first lacked of what was wanted. What is
// certain is asked for from now on, the rest once it has been lacking for a while.
// It reports whether more is asked for than before.
func (n *need) update(want, lacking, certain gpu.FieldSet, now time.Time) (grown bool) {
	before := n.asked
	if want != n.want {
		*n = need{want: want, asked: n.asked.Intersect(want), hopeless: n.hopeless, said: n.said}
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
