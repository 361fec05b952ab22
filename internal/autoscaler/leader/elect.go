// SPDX-License-Identifier: Apache-2.0

// Package leader elects the replica that writes, by a Lease, and runs tasks in its terms.
package leader

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"

	"github.com/gpupilot/gpupilot/internal/autoscaler/kube"
)

// Config holds the settings of an Election. Zero durations mean the defaults.
//
// The defaults follow from the promise that another replica decides within 2 s of the
// leader's shutdown and within 10 s of its crash. A replica that waits for the lease
// reads it every 1.0 to 2.2 × Retry (client-go's jitter). A released lease is therefore
// taken after at most 2.2 × Retry = 1.1 s. A crashed leader's last renewal is noticed at
// most 2.2 × Retry late, and its expiry too: Lease + 4.4 × Retry = 8.2 s. Renew is 2 s
// shorter than Lease, so that a write of the old leader has ended when another replica
// takes the lease.
type Config struct {
	Leases    coordinationv1client.LeasesGetter
	Namespace string
	Name      string
	Identity  string      // of this replica
	Owner     *kube.Owner // of a new lease; may be nil

	Lease time.Duration // how long other replicas wait for a leader that stopped renewing; 6 s
	Renew time.Duration // how long a leader that cannot renew remains the leader; 4 s
	Retry time.Duration // between renewals, and the shortest time between attempts to take the lease; 500 ms

	Log *slog.Logger // nil discards
}

// Election runs the leader election of one replica. A replica that loses the lease
// takes part again; the program does not exit.
type Election struct {
	cfg     Config
	elector *leaderelection.LeaderElector
	leading atomic.Pointer[context.Context] // the context of the term; nil: not leading
	running atomic.Pointer[context.Context] // of Run; nil: it has not begun
	changed []func(leading bool)
}

// OnChange adds f, which is called when this replica becomes the leader or stops being it.
// It must be called before Run.
func (e *Election) OnChange(f func(leading bool)) { e.changed = append(e.changed, f) }

// New makes an election. Run starts it.
func New(cfg Config) (*Election, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	for d, otherwise := range map[*time.Duration]time.Duration{
		&cfg.Lease: 6 * time.Second, &cfg.Renew: 4 * time.Second, &cfg.Retry: 500 * time.Millisecond,
	} {
		if *d <= 0 {
			*d = otherwise
		}
	}
	e := &Election{cfg: cfg}
	var err error
	e.elector, err = leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: cfg.Namespace, Name: cfg.Name},
			Client:     ownedLeases{LeasesGetter: cfg.Leases, owner: cfg.Owner, mayRelease: e.stops},
			LockConfig: resourcelock.ResourceLockConfig{Identity: cfg.Identity},
		},
		LeaseDuration: cfg.Lease, RenewDeadline: cfg.Renew, RetryPeriod: cfg.Retry,
		ReleaseOnCancel: true, Name: cfg.Name,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: e.startTerm,
			OnStoppedLeading: e.endTerm,
			OnNewLeader:      func(id string) { cfg.Log.Info("leader", "identity", id) },
		},
	})
	if err != nil {
		return nil, fmt.Errorf("lease %s/%s: %w", cfg.Namespace, cfg.Name, err)
	}
	return e, nil
}

// errHeld keeps the lease of a leader that goes on running.
var errHeld = errors.New("a lease is released only when the program ends; it expires")

// stops reports whether Run is to end.
func (e *Election) stops() bool {
	ctx := e.running.Load()
	return ctx != nil && (*ctx).Err() != nil
}

// ownedLeases gives new leases an owner, and keeps a lease from being released at the
// wrong time.
type ownedLeases struct {
	coordinationv1client.LeasesGetter
	owner      *kube.Owner
	mayRelease func() bool
}

// Leases implements LeasesGetter.
func (o ownedLeases) Leases(namespace string) coordinationv1client.LeaseInterface {
	return ownedLease{LeaseInterface: o.LeasesGetter.Leases(namespace), owner: o.owner, mayRelease: o.mayRelease}
}

type ownedLease struct {
	coordinationv1client.LeaseInterface
	owner      *kube.Owner
	mayRelease func() bool
}

// Update implements LeaseInterface. client-go also releases the lease of a leader whose
// renewals fail, before its term ends. Another replica would lead at once, while writes
// of this one are under way.
func (o ownedLease) Update(ctx context.Context, lease *coordinationv1.Lease, opts metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	if holder := lease.Spec.HolderIdentity; (holder == nil || *holder == "") && !o.mayRelease() {
		return nil, errHeld
	}
	return o.LeaseInterface.Update(ctx, lease, opts)
}

// Create implements LeaseInterface.
func (o ownedLease) Create(ctx context.Context, lease *coordinationv1.Lease, opts metav1.CreateOptions) (*coordinationv1.Lease, error) {
	refs, err := o.owner.References(ctx)
	if err != nil {
		return nil, err
	}
	lease = lease.DeepCopy()
	lease.OwnerReferences = refs
	return o.LeaseInterface.Create(ctx, lease, opts)
}

func (e *Election) startTerm(ctx context.Context) {
	if ctx.Err() != nil {
		return // client-go calls this in a new goroutine: the term may have ended
	}
	e.leading.Store(&ctx)
	e.notify(true)
}

func (e *Election) endTerm() {
	if e.leading.Swap(nil) != nil {
		e.notify(false)
	}
}

func (e *Election) notify(leading bool) {
	e.cfg.Log.Info("leadership", "leading", leading, "identity", e.cfg.Identity)
	for _, f := range e.changed {
		f(leading)
	}
}

// Run takes part in the election until ctx is done, and then releases the lease.
func (e *Election) Run(ctx context.Context) {
	// The elector logs an error at each attempt.
	ctx = klog.NewContext(ctx, logr.FromSlogHandler(&rateLimitedHandler{Handler: e.cfg.Log.Handler()}))
	e.running.Store(&ctx)
	for ctx.Err() == nil {
		e.elector.Run(ctx)
	}
}

// Leading reports whether this replica may write now. It becomes false before it
// becomes true in another replica, even while the API server does not answer.
func (e *Election) Leading() bool {
	term := e.leading.Load()
	return term != nil && (*term).Err() == nil && e.elector.IsLeader() &&
		e.elector.Check(e.cfg.Renew-e.cfg.Lease) == nil
}

// rateLimitedHandler passes on one warning or error per minute, and no other lines.
type rateLimitedHandler struct {
	slog.Handler
	last atomic.Int64 // unix seconds
}

const minLogInterval = 60 // s

// Enabled implements slog.Handler.
func (s *rateLimitedHandler) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= slog.LevelWarn && s.Handler.Enabled(ctx, l)
}

// Handle implements slog.Handler.
func (s *rateLimitedHandler) Handle(ctx context.Context, r slog.Record) error {
	last := s.last.Load()
	if r.Time.Unix()-last < minLogInterval || !s.last.CompareAndSwap(last, r.Time.Unix()) {
		return nil
	}
	return s.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler; all lines share one limit.
func (s *rateLimitedHandler) WithAttrs([]slog.Attr) slog.Handler { return s }

// WithGroup implements slog.Handler.
func (s *rateLimitedHandler) WithGroup(string) slog.Handler { return s }

// Leader returns the identity of the last observed leader; empty: none.
func (e *Election) Leader() string { return e.elector.GetLeader() }
