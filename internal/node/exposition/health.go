// SPDX-License-Identifier: Apache-2.0

package exposition

import (
	"cmp"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// healthOK is the error code of a healthy system.
const healthOK = "DCGM_FR_OK"

// appendHealth writes a GPU's systems, with the library's verdicts if it gives
// any, else with ours. MIG instances have no health of their own.
func (m *metric) appendHealth(b []byte, in *renderInput, e *entity) []byte {
	if e.dev.MIG != nil {
		return b
	}
	of, judged := e.dev.Health(in.now, gpu.MaxAge(in.snap.Interval))
	for w := range gpu.HealthWatch(gpu.HealthWatches) {
		if !judged && gpu.Unjudged(w) {
			continue
		}
		b = append(m.head(b, in, e), `,health_error_code="`...)
		b = appendEscaped(b, cmp.Or(of[w].Code, healthOK), true)
		b = append(b, `",health_watch="`...)
		b = append(append(b, w.String()...), '"')
		b = m.tail(b, in, e, uint64(of[w].Health))
	}
	return b
}

// xidText is the err_msg of an XID code.
func xidText(code uint64) string {
	if x, ok := gpu.LookupXID(code); ok {
		return x.Text
	}
	return "Unknown Error"
}
