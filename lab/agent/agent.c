// The lab's first process. It runs the commands that arrive on a virtio-serial
// port, several at a time, and sends their output and exit status back.
//
// A message is a header of nine bytes (type, command number, length; numbers
// are little endian) and a payload. lab/agent.go is the other end.
//
//   to the lab                              from the lab
//   R  run: arguments, each ends with NUL   u  up: the agent takes messages
//   K  kill the command's process group     g  gone on
//   G  go on: time in ns, then entropy      o  standard output of a command
//   O  power off                            e  standard error of a command
//                                           x  exit status, four bytes
//                                           b  heartbeat, every two seconds
//
// Heartbeats begin with the first G: a lab that is saved is silent.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/random.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/reboot.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { HEADER = 9, CHUNK = 32 << 10, LONGEST = 1 << 20, PIPE_CHUNKS = 4, BEAT_MS = 2000, GRACE_MS = 1000 };

// A command whose leader has ended remains until no process has its pipes open,
// so that processes it left behind can continue to write.
struct command {
	struct command *next;
	uint32_t id;
	pid_t leader;   // and its process group; 0 after the exit status was sent
	int fd[2];      // read ends of standard output and standard error, or -1
	int ended, status;
	int64_t kill_at; // when SIGKILL follows SIGTERM; 0: never
};

static struct command *commands;
static int port, beating;

static int64_t now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

static void send_all(const void *data, size_t size)
{
	for (const char *at = data; size > 0;) {
		ssize_t n = write(port, at, size);
		if (n > 0)
			at += n, size -= n;
		else if (n < 0 && errno != EINTR && errno != EAGAIN)
			usleep(50000); // no reader at the moment
	}
}

static void put32(unsigned char *to, uint32_t v) { for (int i = 0; i < 4; i++) to[i] = v >> 8 * i; }

static uint32_t get32(const unsigned char *from) { return from[0] | from[1] << 8 | from[2] << 16 | (uint32_t)from[3] << 24; }

static void send_message(char type, uint32_t id, const void *payload, uint32_t size)
{
	unsigned char message[HEADER + CHUNK];
	message[0] = type;
	put32(message + 1, id);
	put32(message + 5, size);
	memcpy(message + HEADER, payload, size);
	send_all(message, HEADER + size);
}

// open_port waits for the port, which its driver may create later.
static int open_port(void)
{
	for (;; usleep(20000)) {
		DIR *d = opendir("/dev");
		struct dirent *e;
		while (d && (e = readdir(d)))
			if (!strncmp(e->d_name, "vport", 5)) {
				char path[300];
				snprintf(path, sizeof path, "/dev/%s", e->d_name);
				int fd = open(path, O_RDWR | O_CLOEXEC);
				if (fd >= 0) {
					closedir(d);
					return fd;
				}
			}
		if (d)
			closedir(d);
	}
}

// become turns the child into the command.
static void become(char **argv, int out, int err)
{
	sigset_t none;
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, 0);
	signal(SIGPIPE, SIG_DFL);
	setsid();
	dup2(open("/dev/null", O_RDONLY | O_CLOEXEC), 0);
	dup2(out, 1);
	dup2(err, 2);
	if (chdir("/root") && chdir("/"))
		_exit(126);
	execvp(argv[0], argv);
	int status = errno == ENOENT ? 127 : 126;
	dprintf(2, "%s: %s\n", argv[0], strerror(errno));
	_exit(status);
}

static void run(uint32_t id, char *payload, uint32_t size)
{
	size_t count = 0;
	for (uint32_t i = 0; i < size; i++)
		count += payload[i] == 0;
	char **argv = calloc(count + 1, sizeof *argv);
	for (uint32_t i = 0, n = 0; n < count; i += strlen(payload + i) + 1)
		argv[n++] = payload + i;
	int out[2] = {-1, -1}, err[2] = {-1, -1};
	struct command *c = calloc(1, sizeof *c);
	int made = pipe2(out, O_CLOEXEC) == 0 && pipe2(err, O_CLOEXEC) == 0;
	c->id = id, c->fd[0] = out[0], c->fd[1] = err[0], c->next = commands;
	commands = c;
	c->leader = made ? fork() : -1;
	if (c->leader == 0)
		become(argv, out[1], err[1]);
	if (c->leader < 0)
		c->ended = 1, c->status = 126; // no process, no pipe: reported as a command that cannot be started
	for (int i = 0; i < 2; i++)
		if (c->fd[i] >= 0)
			fcntl(c->fd[i], F_SETFL, O_NONBLOCK);
	close(out[1]);
	close(err[1]);
	free(argv);
}

// drain passes on a chunk of what a pipe holds. Output that comes after the
// exit status is dropped.
static void drain(struct command *c, int which)
{
	static char chunk[CHUNK];
	ssize_t n = c->fd[which] < 0 ? -1 : read(c->fd[which], chunk, sizeof chunk);
	if (n > 0 && c->leader)
		send_message(which ? 'e' : 'o', c->id, chunk, n);
	if (c->fd[which] < 0 || n > 0 || (n < 0 && (errno == EINTR || errno == EAGAIN)))
		return;
	close(c->fd[which]);
	c->fd[which] = -1;
}

static void order_kill(uint32_t id)
{
	for (struct command *c = commands; c; c = c->next)
		if (c->id == id && c->leader > 0 && !c->kill_at) {
			kill(-c->leader, SIGTERM);
			c->kill_at = now_ms() + GRACE_MS;
		}
}

// go_on sets what a lab cannot know after it was saved: the time, and random
// numbers that no other lab from the same image has.
static void go_on(const unsigned char *payload, uint32_t size)
{
	if (size < 8)
		return;
	uint64_t ns = get32(payload) | (uint64_t)get32(payload + 4) << 32;
	struct timespec t = {ns / 1000000000, ns % 1000000000};
	clock_settime(CLOCK_REALTIME, &t);
	int random = open("/dev/urandom", O_WRONLY | O_CLOEXEC);
	if (random >= 0) {
		if (write(random, payload + 8, size - 8) > 0)
			ioctl(random, RNDRESEEDCRNG);
		close(random);
	}
	beating = 1;
	send_message('g', 0, "", 0);
}

static void obey(char type, uint32_t id, char *payload, uint32_t size)
{
	switch (type) {
	case 'R':
		run(id, payload, size);
		break;
	case 'K':
		order_kill(id);
		break;
	case 'G':
		go_on((unsigned char *)payload, size);
		break;
	case 'O':
		sync();
		reboot(RB_POWER_OFF);
	}
}

// receive reads what has come and obeys whole messages.
static void receive(void)
{
	static char buffer[HEADER + LONGEST];
	static size_t have;
	ssize_t n = read(port, buffer + have, sizeof buffer - have);
	if (n <= 0) {
		usleep(20000); // no peer is connected
		return;
	}
	have += n;
	while (have >= HEADER) {
		uint32_t size = get32((unsigned char *)buffer + 5);
		if (size > LONGEST || have < HEADER + size)
			break; // lab/agent.go sends no longer one
		obey(buffer[0], get32((unsigned char *)buffer + 1), buffer + HEADER, size);
		memmove(buffer, buffer + HEADER + size, have -= HEADER + size);
	}
}

// reap collects every process that has ended: the first process inherits orphans.
static void reap(void)
{
	int status;
	for (pid_t p; (p = waitpid(-1, &status, WNOHANG)) > 0;)
		for (struct command *c = commands; c; c = c->next)
			if (c->leader == p && !c->ended) {
				c->ended = 1;
				c->status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
			}
}

// settle sends the exit statuses of commands that have ended, and forgets
// those whose pipes are closed. A killed command has ended when its whole group has.
static void settle(void)
{
	for (struct command **at = &commands; *at;) {
		struct command *c = *at;
		if (c->leader > 0 && c->kill_at && now_ms() >= c->kill_at) {
			kill(-c->leader, SIGKILL);
			c->kill_at = now_ms() + GRACE_MS;
		}
		int group = c->kill_at && c->leader > 0 && kill(-c->leader, 0) == 0;
		if (c->leader && c->ended && !group) {
			for (int i = 0; i < PIPE_CHUNKS; i++)
				drain(c, 0), drain(c, 1);
			unsigned char status[4];
			put32(status, c->status);
			send_message('x', c->id, status, sizeof status);
			c->leader = 0;
		}
		if (!c->leader && c->fd[0] < 0 && c->fd[1] < 0) {
			*at = c->next;
			free(c);
		} else {
			at = &c->next;
		}
	}
}

static int timeout(int64_t next_beat)
{
	int64_t at = next_beat;
	for (struct command *c = commands; c; c = c->next)
		if (c->leader && c->kill_at)
			at = at < now_ms() + 20 ? at : now_ms() + 20;
	return at > now_ms() ? at - now_ms() : 0;
}

int main(void)
{
	sigset_t child;
	sigemptyset(&child);
	sigaddset(&child, SIGCHLD);
	sigprocmask(SIG_BLOCK, &child, 0);
	signal(SIGPIPE, SIG_IGN);
	int ended = signalfd(-1, &child, SFD_NONBLOCK | SFD_CLOEXEC);
	port = open_port();
	send_message('u', 0, "", 0);
	for (int64_t next_beat = now_ms() + BEAT_MS;;) {
		size_t count = 2;
		for (struct command *c = commands; c; c = c->next)
			count += 2;
		struct pollfd polls[count];
		size_t n = 2;
		polls[0] = (struct pollfd){port, POLLIN, 0};
		polls[1] = (struct pollfd){ended, POLLIN, 0};
		for (struct command *c = commands; c; c = c->next)
			for (int i = 0; i < 2; i++)
				polls[n++] = (struct pollfd){c->fd[i], POLLIN, 0};
		poll(polls, count, timeout(next_beat));
		n = 2;
		for (struct command *c = commands; c; c = c->next)
			for (int i = 0; i < 2; i++)
				if (polls[n++].revents)
					drain(c, i);
		struct signalfd_siginfo info;
		while (read(ended, &info, sizeof info) > 0)
			;
		reap();
		if (polls[0].revents)
			receive();
		settle();
		if (now_ms() >= next_beat) {
			if (beating)
				send_message('b', 0, "", 0);
			next_beat = now_ms() + BEAT_MS;
		}
	}
}
