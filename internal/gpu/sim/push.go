// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

// PushPath is the path of the agent at which a simulated load is pushed.
const PushPath = "/api/v1/sim"

const (
	// PushedFor is how long a pushed state holds. Whoever pushes repeats it, so that a load ends with its program.
	PushedFor = 3 * time.Second
	maxPushed = 256 << 10 // bytes; the state of 64 GPUs with all fields has 200 KiB
)

// pushed is the state that was pushed last.
type pushed struct {
	now func() time.Time

	mu    sync.Mutex
	state State
	until time.Time
}

// load returns the pushed state while it holds; without one, the GPUs are idle.
func (p *pushed) load() (State, bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now().Before(p.until) {
		return p.state, true, nil
	}
	return State{}, true, nil
}

// ServeHTTP takes a State with PUT.
func (p *pushed) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPut {
		w.Header().Set("Allow", http.MethodPut)
		http.Error(w, "PUT a state", http.StatusMethodNotAllowed)
		return
	}
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxPushed))
	var s State
	if err == nil {
		s, err = ParseState(b)
	}
	if err == nil && len(s.GPUs) > MaxGPUs {
		err = fmt.Errorf("%d GPUs: want at most %d", len(s.GPUs), MaxGPUs)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state, p.until = s, p.now().Add(PushedFor)
	w.WriteHeader(http.StatusNoContent)
}

// Push is the handler of PushPath; nil without Config.Push.
func (r *Reader) Push() http.Handler {
	if p, ok := r.source.(*pushed); ok {
		return p
	}
	return nil
}

// Encode returns a state as a file or a request has it.
func (s State) Encode() ([]byte, error) {
	b, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encode state: %w", err)
	}
	return b, nil
}
