"""Everything the demo checkpoint can name: colours, shapes, objects, places, counts, words and characters."""

from __future__ import annotations

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (215, 35, 40),
    "orange": (245, 140, 25),
    "yellow": (245, 220, 40),
    "green": (40, 155, 60),
    "blue": (40, 80, 215),
    "purple": (125, 45, 175),
    "pink": (250, 135, 190),
    "black": (22, 22, 24),
    "white": (246, 246, 244),
}
SHAPES = ("circle", "square", "triangle", "star", "heart", "diamond", "cross")
PLACES = ("left", "right", "top", "bottom", "middle")
COUNTS = ("one", "two", "three", "four")
CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789"

_OBJECTS = """
dog 🐶 cat 🐱 horse 🐴 cow 🐮 pig 🐷 sheep 🐑 rabbit 🐰 mouse 🐭 bear 🐻 lion 🦁 tiger 🐯 monkey 🐵 elephant 🐘
frog 🐸 snake 🐍 bird 🐦 chicken 🐔 duck 🦆 fish 🐟 whale 🐳 shark 🦈 crab 🦀 spider 🕷 bee 🐝 butterfly 🦋 snail 🐌
turtle 🐢 penguin 🐧 owl 🦉 fox 🦊 wolf 🐺 goat 🐐 camel 🐫 ant 🐜 deer 🦌 zebra 🦓 panda 🐼 dolphin 🐬 octopus 🐙
dragon 🐉 dinosaur 🦕 bat 🦇 eagle 🦅 turkey 🦃 apple 🍎 banana 🍌 lemon 🍋 cherry 🍒 strawberry 🍓 grapes 🍇
peach 🍑 pear 🍐 pineapple 🍍 tomato 🍅 carrot 🥕 corn 🌽 bread 🍞 cheese 🧀 egg 🥚 pizza 🍕 cake 🍰 cookie 🍪
candy 🍬 coffee ☕ milk 🥛 beer 🍺 wine 🍷 rice 🍚 potato 🥔 broccoli 🥦 mushroom 🍄 avocado 🥑 coconut 🥥
watermelon 🍉 pepper 🌶 garlic 🧄 onion 🧅 honey 🍯 popcorn 🍿 car 🚗 bus 🚌 truck 🚚 train 🚆 plane ✈
helicopter 🚁 rocket 🚀 boat ⛵ ship 🚢 bicycle 🚲 motorcycle 🏍 tractor 🚜 taxi 🚕 ambulance 🚑 house 🏠
castle 🏰 church ⛪ tent ⛺ tree 🌳 flower 🌼 rose 🌹 cactus 🌵 leaf 🍁 sunflower 🌻 sun ☀ moon 🌙 cloud ☁
rainbow 🌈 fire 🔥 umbrella ☂ volcano 🌋 mountain ⛰ globe 🌍 book 📖 pencil ✏ pen 🖊 scissors ✂ key 🔑 lock 🔒
hammer 🔨 knife 🔪 fork 🍴 spoon 🥄 phone 📱 camera 📷 television 📺 radio 📻 clock ⏰ watch ⌚ candle 🕯 chair 🪑
bed 🛏 door 🚪 toilet 🚽 ball ⚽ basketball 🏀 baseball ⚾ guitar 🎸 piano 🎹 drum 🥁 trumpet 🎺 violin 🎻 hat 🎩
cap 🧢 shirt 👕 dress 👗 shoe 👟 boot 👢 glasses 👓 bag 👜 backpack 🎒 crown 👑 ring 💍 balloon 🎈 gift 🎁 robot 🤖
ghost 👻 skull 💀 clown 🤡 hand ✋ foot 🦶 eye 👁 ear 👂 nose 👃 tooth 🦷 brain 🧠 bone 🦴 bomb 💣 bell 🔔 magnet 🧲
ladder 🪜 broom 🧹 brush 🖌 envelope ✉ flag 🚩 trophy 🏆 medal 🏅 dice 🎲 puzzle 🧩 kite 🪁 microscope 🔬
telescope 🔭 laptop 💻 keyboard ⌨ bulb 💡 anchor ⚓ axe 🪓 sword 🗡 shield 🛡 bow 🏹 saw 🪚 glove 🧤 sock 🧦
pants 👖 newspaper 📰 map 🗺 money 💰 cup 🥤 microphone 🎤 headphones 🎧 baby 👶
"""
OBJECTS: dict[str, str] = dict(zip(_OBJECTS.split()[::2], _OBJECTS.split()[1::2], strict=True))
KINDS = (*SHAPES, *OBJECTS)
# Things named without an article in an answer.
PLURAL_OR_MASS = frozenset(
    "sheep grapes corn bread cheese broccoli milk beer coffee wine rice garlic honey popcorn money scissors glasses "
    "pants headphones dice fire candy pizza".split()
)

WORDS = tuple(
    """
air bag big box boy bus car cat city cold cool day dog door exit fast fire fish food free game girl go gold
good hand happy hello help home hot ice jump key king life light look love man milk moon music name new next
night no now off ok open page park play push red rest road room run safe sale ship shop show sign snow star
stop sun taxi time town tree turn walk warm water win world yes zoo
""".split()
)
