// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
)

// The bounds of Asked.
const (
	maxKept = 256
	// share limits the time that is spent on answers: after each, Asked pauses for share
	// times as long.
	share = 9
)

// Asked answers for many viewers: it keeps the answers until the object changes, and limits
// the time that it spends. The zero value is empty.
type Asked struct {
	mu   sync.Mutex
	kept map[types.UID]answer
	next time.Time // when it may work again
}

type answer struct {
	version string
	changes []string
}

// Changes returns what Changes returns for a. ok is false if it is not known, or not now.
func (k *Asked) Changes(a *v1alpha1.GPUAutoscaler) (changes []string, ok bool) {
	if a.Status.LastDecision == nil || !k.mu.TryLock() {
		return nil, false
	}
	defer k.mu.Unlock()
	if x, found := k.kept[a.UID]; found && x.version == a.ResourceVersion {
		return x.changes, x.changes != nil
	}
	began := time.Now()
	if began.Before(k.next) {
		return nil, false
	}
	changes, err := Changes(a)
	if changes == nil && err == nil {
		changes = []string{}
	}
	if len(k.kept) >= maxKept || k.kept == nil {
		k.kept = map[types.UID]answer{}
	}
	k.kept[a.UID] = answer{a.ResourceVersion, changes}
	k.next = time.Now().Add(share * time.Since(began))
	return changes, err == nil
}
