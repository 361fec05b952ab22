// SPDX-License-Identifier: Apache-2.0

// Package aspect has the features of scaling: each is a file, and a line in Fleet.Of. The control loop of a workload knows
// them by the interface Aspect only.
package aspect

import (
	"context"
	"log/slog"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/autoscaler/meters"
	"github.com/gpupilot/gpupilot/internal/autoscaler/objective"
	"github.com/gpupilot/gpupilot/internal/autoscaler/observe"
	"github.com/gpupilot/gpupilot/internal/autoscaler/target"
	"github.com/gpupilot/gpupilot/internal/base/fair"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
	"github.com/gpupilot/gpupilot/internal/scale/replica"
	"github.com/gpupilot/gpupilot/internal/window/history"
	"github.com/gpupilot/gpupilot/internal/window/series"
	"github.com/gpupilot/gpupilot/internal/window/trust"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// Aspect is a feature of scaling, with its state about one workload. The workload's goroutine calls it. An aspect that has
// nothing to do in a step embeds None.
type Aspect interface {
	// Prepare changes the policy and the observation of a decision.
	Prepare(p *Pass)
	// Decided follows a decision, before it is written.
	Decided(ctx context.Context, p *Pass)
	// Report ends each pass, also one without a decision. It returns what the aspect says about it.
	Report(p *Pass) Part
	// Forget drops what is known of the target: there is another one.
	Forget(p *Pass)
}

// None is an Aspect that does nothing.
type None struct{}

func (None) Prepare(*Pass)                  {}
func (None) Decided(context.Context, *Pass) {}
func (None) Forget(*Pass)                   {}

// Pass is one pass of a workload's control loop: observe, decide, actuate.
type Pass struct {
	Key    types.NamespacedName
	At     time.Time
	Object *v1alpha1.GPUAutoscaler
	Target *target.Target   // nil: not found
	Plan   *policy.Compiled // nil: the spec is invalid

	// Known in Report.
	Blocked bool                     // an obstacle that lasts prevented the decision
	Places  map[string]struct{}      // of the samples of the workload's pods
	Signals metav1.Condition         // ConditionSignals
	Startup *v1alpha1.LearnedStartup // nil: not known

	// Of the decision, which a write that conflicts with another one replaces before Report. Zero without one.
	Units       replica.Units
	Reader      observe.Reader
	UpToDate    func(context.Context) bool        // whether the API server still has Object
	Tokens      func(signal int) []history.Metric // see objective.Recorded
	Policy      scale.Policy
	Unbounded   scale.Policy // without schedules and overrides
	Observation scale.Observation
	Decision    *scale.Decision // nil: an obstacle prevented it
	State       scale.State
}

// Part is what an aspect says about one pass. The status is written from it later: it neither changes nor keeps the Pass.
type Part struct {
	Unasked    bool               // the spec does not ask for the aspect
	Owns       []string           // types of conditions that the status does not have if Unasked, or while the workload is blocked
	Conditions []metav1.Condition // those that are not here stay as they are in the status
	Notices    []Notice           // Events that are due
	// Status sets the aspect's fields of a status; last is the one before it. nil: it has none.
	Status  func(st, last *v1alpha1.GPUAutoscalerStatus)
	View    func(v *view.Workload)   // sets its fields of the page; nil: it has none
	Metrics func(m *meters.Workload) // sets its metrics; nil: it has none
}

// Notice is an Event that is due.
type Notice struct{ Kind, Reason, Action, Note string }

// Deps holds the collaborators of the aspects.
type Deps struct {
	Client  client.Client
	Writes  *fair.Slots // of the requests that scale, as signals, and that write statuses, with the namespace as payer
	Leading func() bool // whether this replica may write
	Log     *slog.Logger
	Store   *series.Store
	Devices *trust.Devices // the API server's facts about GPUs
	Past    objective.Past // what the history has kept; nil: nothing
}

// Fleet is what the aspects of all workloads share.
type Fleet struct {
	Deps
	Pairs       Pairs
	Disruptions Disruptions
	Gates       *Gates
	Patches     *fair.Slots // of pods, by the namespace
	limits      limits
	recalls     sync.Mutex // see objective.Recorded
}

// NewFleet makes a Fleet.
func NewFleet(deps Deps) *Fleet {
	return &Fleet{Deps: deps, Gates: newGates(deps), Patches: fair.NewSlots(fair.Config{Slots: maxPatches, Share: maxPatchesEach})}
}

// The patches of pods at a time, which others wait for if the API server is slow: of all, and of one namespace.
const (
	maxPatches     = 16
	maxPatchesEach = 4
)

// Of returns the aspects of a new workload, in the order in which a pass calls them. Their conditions stand in the reverse
// order.
func (f *Fleet) Of(a *v1alpha1.GPUAutoscaler) []Aspect {
	learned := &startup{}
	learned.Restore(a.Status.Startup)
	return []Aspect{
		learned,
		&window{fleet: f},
		&bounding{fleet: f},
		&pair{fleet: f},
		&idle{fleet: f},
		&drain{fleet: f},
		rollout{},
		&objectives{fleet: f},
	}
}

// Backoff is the pause after failed requests: half a second, doubled with each
// consecutive failure, up to 15 s.
type Backoff struct {
	Failures int
	Until    time.Time
	Message  string // the last error
}

// Extend follows a failure.
func (b *Backoff) Extend(now time.Time, message string) {
	b.Until = now.Add(min(500*time.Millisecond<<min(b.Failures, 10), 15*time.Second))
	b.Failures++
	b.Message = message
}

// HasEnded reports whether the next request may be made.
func (b *Backoff) HasEnded(now time.Time) bool { return !now.Before(b.Until) }
