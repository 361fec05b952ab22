// SPDX-License-Identifier: Apache-2.0

package metricsapi

import (
	"context"
	"net/http"
	"time"

	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/gpupilot/gpupilot/internal/base/fair"
)

// The bounds of requests that are answered at a time. An answer that its client does not read holds its slot, for as long as
// the generic API server lets a request take: a minute.
const (
	maxRequests      = 512
	maxPayerRequests = 32 // the HorizontalPodAutoscaler's controller has five workers by default
	maxPayerWaiting  = 128
	slotPatience     = 2 * time.Second
)

// shared serves next within slots, of which a payer has a share: the namespace of a service account, or another user. It has
// the place of the generic API server's own bound, which knows no payer.
func shared(next http.Handler) http.Handler {
	slots := fair.NewSlots(fair.Config{Slots: maxRequests, Share: maxPayerRequests})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var payer fair.Payer
		if u, ok := request.UserFrom(r.Context()); ok {
			payer = fair.Account(u.GetName())
		}
		ctx, cancel := context.WithTimeout(r.Context(), slotPatience)
		release, err := slots.Acquire(ctx, fair.Request{Payer: payer, MaxWaiting: maxPayerWaiting})
		cancel()
		if err != nil {
			w.Header().Set("Retry-After", "1")
			http.Error(w, "earlier requests of this user's namespace have not been answered, or their answers not been read; try again", http.StatusTooManyRequests)
			return
		}
		defer release()
		next.ServeHTTP(w, r)
	})
}
