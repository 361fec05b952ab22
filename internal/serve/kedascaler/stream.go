// SPDX-License-Identifier: Apache-2.0

package kedascaler

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/gpupilot/gpupilot/internal/serve/kedascaler/externalscaler"
)

// The times of a stream.
const (
	// streamEvery is how often a stream looks whether the workload became active. It is
	// well below the second in which a workload is to be activated.
	streamEvery = 250 * time.Millisecond
	// streamRepeat is how often an unchanged state is sent again, because KEDA does not
	// retry a scaling that failed.
	streamRepeat = 15 * time.Second
)

// streams counts the open streams of each namespace.
type streams struct {
	mu    sync.Mutex
	total int
	by    map[string]int // by namespace
}

// open counts a stream. It reports false at the limits.
func (s *streams) open(namespace string, perNamespace, total int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.by[namespace] >= perNamespace || s.total >= total {
		return false
	}
	s.total++
	s.by[namespace]++
	return true
}

func (s *streams) close(namespace string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total--
	if s.by[namespace]--; s.by[namespace] == 0 {
		delete(s.by, namespace)
	}
}

func (s *streams) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.total
}

// StreamIsActive sends whether the workload is active: at the start, when it changes,
// and every streamRepeat. While there is no value it sends nothing. It ends if the
// trigger has become invalid; KEDA then tries again.
func (s *Server) StreamIsActive(ref *pb.ScaledObjectRef, out grpc.ServerStreamingServer[pb.IsActiveResponse]) error {
	ctx := out.Context()
	first, done, err := s.begin(ctx, ref.GetNamespace())
	if err != nil {
		return err
	}
	r, err := s.resolve(first, ref)
	done()
	if err != nil {
		return err
	}
	if !s.streams.open(ref.GetNamespace(), s.cfg.StreamsPerNamespace, s.cfg.Streams) {
		return status.Errorf(codes.ResourceExhausted, "too many streams: at most %d of a namespace and %d in all", s.cfg.StreamsPerNamespace, s.cfg.Streams)
	}
	defer s.streams.close(ref.GetNamespace())
	if query := r.trigger.Query; query != "" {
		defer s.signals.Follow(ref.GetNamespace(), query)()
	}
	tick := time.NewTicker(streamEvery)
	defer tick.Stop()
	var sent struct {
		active bool
		at     time.Time // zero: nothing was sent
	}
	for {
		active, known, err := s.activity(ctx, ref)
		if err != nil {
			return err
		}
		now := time.Now()
		if known && (active != sent.active || now.Sub(sent.at) >= streamRepeat) {
			if err := out.Send(&pb.IsActiveResponse{Result: active}); err != nil {
				return err
			}
			sent.active, sent.at = active, now
		}
		select {
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case <-s.stopping:
			return status.Error(codes.Unavailable, "the controller is stopping")
		case <-tick.C:
		}
	}
}

// activity returns whether the workload is active. known is false while there is no
// value.
func (s *Server) activity(ctx context.Context, ref *pb.ScaledObjectRef) (active, known bool, err error) {
	ctx, done, err := s.begin(ctx, ref.GetNamespace())
	if status.Code(err) == codes.ResourceExhausted {
		return false, false, nil
	}
	if err != nil {
		return false, false, err
	}
	defer done()
	r, err := s.resolve(ctx, ref)
	if err == nil {
		var v reading
		if v, err = s.read(ctx, r); err == nil {
			return v.active, true, nil
		}
		err = statusOf(err)
	}
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded:
		return false, false, nil
	}
	return false, false, err
}
