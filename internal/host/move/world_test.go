package move_test

import (
	"github.com/numavisor/numavisor/internal/host/hosttest"
	"github.com/numavisor/numavisor/internal/host/operate/operatetest"
	"github.com/numavisor/numavisor/internal/topology"
)

const (
	mib    = topology.MiB
	gib    = topology.GiB
	square = operatetest.Square
)

type (
	tester   = operatetest.T
	world    = operatetest.World
	book     = operatetest.Book
	breakage = operatetest.Breakage
	masked   = operatetest.Masked
)

var (
	self         = hosttest.Self
	nodes        = operatetest.Nodes
	cpus         = operatetest.CPUs
	newWorld     = operatetest.New
	spec         = operatetest.Spec
	folderOf     = operatetest.Folder
	limitTo      = operatetest.LimitTo
	kinds        = operatetest.Kinds
	misplaced    = operatetest.Misplaced
	breakages    = operatetest.Breakages
	before       = operatetest.Before
	replacement  = operatetest.Replacement
	errLost      = operatetest.ErrLost
	effectWorld  = operatetest.WithProgram
	fixing       = operatetest.WithSettings
	balancingOff = operatetest.BalancingOff
)
