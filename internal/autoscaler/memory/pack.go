// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/latency"
	"github.com/gpupilot/gpupilot/internal/scale/trend"
)

// packed is the stored form of a state. Its many fields would be most of what kubectl
// describe prints of a GPUAutoscaler.
type packed struct {
	Gzip []byte `json:"gzip"` // of the state as JSON
}

// writers are reused: one takes 800 KB, and each write of a status needs one.
var writers = sync.Pool{New: func() any { return gzip.NewWriter(nil) }}

// pack returns the stored form of a state as JSON.
func pack(text []byte) ([]byte, error) {
	var b bytes.Buffer
	w := writers.Get().(*gzip.Writer)
	defer writers.Put(w)
	w.Reset(&b)
	if _, err := w.Write(text); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return json.Marshal(packed{b.Bytes()})
}

// unpack returns the state as JSON. Earlier versions stored it as it is.
func unpack(raw []byte) ([]byte, error) {
	var p packed
	if len(raw) > maxDecoded {
		return nil, errTooLarge
	}
	if err := json.Unmarshal(raw, &p); err != nil || p.Gzip == nil {
		return raw, nil //nolint:nilerr // an earlier form, or none: the caller decodes it
	}
	r, err := gzip.NewReader(bytes.NewReader(p.Gzip))
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(r, maxDecoded+1))
	if err == nil && len(text) > maxDecoded {
		err = errTooLarge
	}
	return text, err
}

var errTooLarge = fmt.Errorf("the state has more than %d KiB", maxDecoded>>10)

// Stored returns the state in a status as it was stored.
func Stored(m *v1alpha1.Memory) (s scale.State, err error) {
	text, err := unpack(m.State.Raw)
	if err != nil {
		return s, fmt.Errorf("decode status.memory: %w", err)
	}
	if err := json.Unmarshal(text, &s); err != nil {
		return scale.State{}, fmt.Errorf("decode status.memory: %w", err)
	}
	if s.Signals == nil {
		s.Signals = decodeLists(text)
	}
	return s, nil
}

// lists is the format of earlier versions: one list for each kind of learned
// value, whose entries name their signal.
type lists struct {
	Levels []struct {
		Signal string
		trend.Level
	}
	Trends []struct {
		Signal string
		trend.Trend
	}
	Flows []struct {
		Signal                string
		Since, At             time.Time
		Rate, Target          float64
		Replicas, Came, There float64
		Seconds               float64
	}
	Curves, Firsts []struct {
		Signal string
		latency.Curve
	}
}

// decodeLists returns the signal states of such a memory; nil if there are
// none. Without them an upgraded controller would lose every learned target.
func decodeLists(raw []byte) []scale.SignalState {
	var m lists
	if json.Unmarshal(raw, &m) != nil {
		return nil
	}
	var out []scale.SignalState
	state := func(name string) *scale.SignalState {
		i := slices.IndexFunc(out, func(s scale.SignalState) bool { return s.Name == name })
		if i < 0 {
			i, out = len(out), append(out, scale.SignalState{Name: name})
		}
		return &out[i]
	}
	for _, x := range m.Levels {
		state(x.Signal).Level = x.Level
	}
	for _, x := range m.Trends {
		state(x.Signal).Trend = x.Trend
	}
	for _, x := range m.Flows {
		state(x.Signal).Arrivals = scale.ArrivalModel{
			Since: x.Since, At: x.At, Rate: x.Rate, Target: x.Target,
			ReplicaSum: x.Replicas, ArrivedSum: x.Came, InFlightSum: x.There, Seconds: x.Seconds,
		}
	}
	for _, x := range m.Curves {
		state(x.Signal).TokenLatency = x.Curve
	}
	for _, x := range m.Firsts {
		state(x.Signal).FirstTokenLatency = x.Curve
	}
	return out
}
